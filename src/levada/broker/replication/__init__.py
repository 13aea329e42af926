"""Replication: fetches from leaders, serves followers, changes ISRs, and gives each partition its role."""
