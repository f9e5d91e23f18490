"""What is shown: plots and the results page."""
