"""HTTP: sockets to requests, requests to the engine, outcomes to answers."""
