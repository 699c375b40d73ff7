"""What only private runs need: the noise and charge of each release, and draws that stay secret."""
