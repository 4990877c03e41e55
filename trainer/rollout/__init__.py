"""Sampling trajectories: engines, the agent loop, tool calls, the Python tool."""
