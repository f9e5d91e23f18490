"""What is done: a workload's sizes, its data and its FLOP count."""
