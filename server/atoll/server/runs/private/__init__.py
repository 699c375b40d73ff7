"""Parts that only private runs need: noise and charge of each release, and secret draws."""
