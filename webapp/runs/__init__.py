"""Runs: their states, attempts, metrics, logs, and the tasks that start and watch them."""
