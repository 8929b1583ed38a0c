"""API keys, tenants, scopes and quotas."""
