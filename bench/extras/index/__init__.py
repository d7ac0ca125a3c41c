"""Write a web page for a folder of runs (`bench index`)."""
