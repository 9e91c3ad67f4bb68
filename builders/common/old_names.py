"""Commands that have another name now: the old words, and what to type in their place."""

OLD_NAMES = {
    "builders": {
        "ccovid": "builders add ccovid",
        "cmedqa": "builders add cmedqa",
        "contamination": "builders similar --against",
        "crosslingual": "builders add crosslingual",
        "crosslingual export": "builders annotate translations export",
        "crosslingual import": "builders annotate translations import",
        "crosslingual review": "builders annotate translations review",
        "extrapolate": "builders add",
        "extrapolate embed": "baselines encode --queries",
        "extrapolate overlap": "builders check",
        "extrapolate restrain": "builders add restrain",
        "extrapolate resttest": "builders add resttest",
        "pool": "builders annotate pool",
        "relabel": "builders annotate relabel",
        "samples": "builders add samples",
        "sources": "builders official --list",
        "stats": "builders check",
    },
    "baselines": dict[str, str](),
}
