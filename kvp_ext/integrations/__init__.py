"""Where kvp-ext meets model libraries; each module needs its library only when imported."""
