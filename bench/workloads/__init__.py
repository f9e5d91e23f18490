"""Workloads: the record that describes one, their data, and operators."""
