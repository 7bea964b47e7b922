"""Apache RocketMQ 5.5.0 beside us: installed by Maven, started on loopback, stopped by pid."""
