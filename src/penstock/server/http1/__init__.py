"""HTTP/1.1 over sockets: bytes to requests, answers to bytes."""
