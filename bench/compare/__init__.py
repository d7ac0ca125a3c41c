"""Two runs held against each other: did anything regress?"""
