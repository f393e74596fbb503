"""Where bundles are computed: in this process, or on Ray actors."""
