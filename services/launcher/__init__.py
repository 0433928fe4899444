"""The local stack: an embedded nats-server and one process per service instance (`penstock up`)."""
