"""BibTeX entries of the paper that the evaluation follows, and of robust201."""

PAPER_BIBTEX = """@inproceedings{jung2023neural,
  title     = {Neural Architecture Design and Robustness: A Dataset},
  author    = {Jung, Steffen and Lukasik, Jovita and Keuper, Margret},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year      = {2023}
}"""


def software_bibtex(version: str) -> str:
    """Return the BibTeX entry of a version of robust201."""
    return f"""@software{{robust201,
  title   = {{robust201: Robustness Evaluation of Architecture Search Spaces}},
  author  = {{{{The robust201 developers}}}},
  version = {{{version}}}
}}"""
