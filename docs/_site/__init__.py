"""How the documentation site differs from the Markdown files that GitHub shows."""
