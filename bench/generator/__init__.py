"""The load generator: raw connections and real clients, each load in a process of its own."""
