"""The grading kit: probe, reference, checks and diagnosis; nothing here imports a submission."""
