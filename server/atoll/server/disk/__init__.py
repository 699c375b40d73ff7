"""The local disk: free space, recycled files, file locks, and checksums of stored bytes."""
