"""The smallest inputs that once misled a run: wrong forms are refused or told, right ones pass.

A case is a file ``test_NN_*.py``, numbered as the reports were. Its models are variants of
stories260K (`tests.cases.variants`), which the fixtures of conftest.py make and measure.
"""
