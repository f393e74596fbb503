"""Code that turns the Markdown files into a documentation site: menus, links, and references generated from the code."""
