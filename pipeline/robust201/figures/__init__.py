"""A dataset's figures, as files and on the report's page."""
