"""Handing a sweep to a cluster: what is shipped, who may be talked to, and one file a kind of cluster."""
