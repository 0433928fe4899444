"""The command line: `penstock up | ask | status | audit | index | bench`."""
