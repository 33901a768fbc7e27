"""The pages of `browse`: rows and documents of a dataset, rendered for each request."""
