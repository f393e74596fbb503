"""Code that turns the Markdown files into a documentation site: menus, links and generated references."""
