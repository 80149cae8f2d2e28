"""The plumbing that every task shares: nothing here imports a task."""
