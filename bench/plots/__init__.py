"""What is shown: pictures and the results page."""
