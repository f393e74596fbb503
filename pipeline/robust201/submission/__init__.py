"""Handing a sweep to a cluster: what is shipped, who may be talked to, and one file per kind of cluster."""
