"""What each product's dashboards look for, a file a product, and our own. metrics.py tells them what happens."""
