"""This machine's disk: free space, files to write over, locks and checksums of stored bytes."""
