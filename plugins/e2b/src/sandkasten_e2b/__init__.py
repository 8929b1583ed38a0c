"""The protocol of E2B, so that its published SDKs work with this daemon unchanged.

`sandbox_routes` is the control plane. `process_routes`, `filesystem_routes` and `file_routes` are
what E2B calls envd: requests about one sandbox, which its access token admits. `e2b_assembly` puts
the routes together.
"""
