"""The edge to the network: sockets in, frames out."""
