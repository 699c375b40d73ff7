"""The RPC shell: thin handlers between protobuf messages and the daemon, one module per service."""
