"""The sandbox benchmark: `python -m benchmarks.sandbox`. A seeded load, contestants side by side, tables, bars."""
