"""Administrative requests: topics, configs, groups, transactions."""
