"""The server's sockets: listener, connections, receive buffers, and the flush at the end of each loop iteration."""
