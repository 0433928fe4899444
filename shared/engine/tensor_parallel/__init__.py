"""One model shared by several processes of this host."""
