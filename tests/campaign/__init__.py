"""Random faults in runs of three workers, and what the others make of them."""
