"""What is kept: rows in CSV files, and what they say when compared."""
