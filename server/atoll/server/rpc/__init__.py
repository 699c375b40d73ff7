"""The RPC shell: thin handlers between protobuf messages and the daemon.

Services: ``enrolment``, ``participation``, ``transfer`` and ``control`` (with its parts ``…_handlers``).
``coordinator_service`` and ``worker_service`` connect the processes of one server. Each call passes through
``interceptor`` and ``method`` (limits, errors). Its handler first asks ``authentication`` for the caller's role.
"""
