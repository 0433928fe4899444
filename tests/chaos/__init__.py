"""What processes, networks and clients do to a stack in bad weather."""

import os

# gRPC would wake its threads in a child between fork and exec, where they end it: drills start nats-servers.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
