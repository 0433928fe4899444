"""The command line: `penstock up | ask | chat | status | …`."""
