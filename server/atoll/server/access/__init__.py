"""Certificates, operators with their roles and projects, sign-in, and the audit log."""
