"""Workers on this machine and checks of a cluster."""
