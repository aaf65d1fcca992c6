"""List prices for where the price API cannot be asked; they are as old as AS_OF says, and every use says so.

US dollars an hour for Linux on shared hardware, on demand, as third parties listed them around that date; none was
checked against a bill. Prices differ between regions: only regions named here have one. What the price API says goes
before this.
"""

from __future__ import annotations

AS_OF = "2025-11-15"

ON_DEMAND_PER_HOUR: dict[str, dict[str, float]] = {
    "p6-b200.48xlarge": {"us-east-1": 113.93, "us-east-2": 113.93, "us-west-2": 113.93},
    "p5en.48xlarge": {"us-east-1": 63.30, "us-east-2": 63.30, "us-west-2": 63.30},
    "p5.48xlarge": {"us-east-1": 55.04, "us-east-2": 55.04, "us-west-2": 55.04},
    "p4de.24xlarge": {"us-east-1": 27.45, "us-west-2": 27.45},
    "p4d.24xlarge": {"us-east-1": 21.96, "us-west-2": 21.96},
    "g6e.xlarge": {"us-east-1": 1.861, "us-east-2": 1.861, "us-west-2": 1.861},
    "g6e.12xlarge": {"us-east-1": 10.493, "us-east-2": 10.493, "us-west-2": 10.493},
    "g6e.48xlarge": {"us-east-1": 30.131, "us-east-2": 30.131, "us-west-2": 30.131},
    "g6.xlarge": {"us-east-1": 0.805, "us-east-2": 0.805, "us-west-2": 0.805},
    "g6.12xlarge": {"us-east-1": 4.602, "us-east-2": 4.602, "us-west-2": 4.602},
    "g5.xlarge": {"us-east-1": 1.006, "us-east-2": 1.006, "us-west-2": 1.006},
    "g5.12xlarge": {"us-east-1": 5.672, "us-east-2": 5.672, "us-west-2": 5.672},
    "g5.48xlarge": {"us-east-1": 16.288, "us-east-2": 16.288, "us-west-2": 16.288},
    "g4dn.xlarge": {"us-east-1": 0.526, "us-east-2": 0.526, "us-west-2": 0.526},
    "t3.micro": {"us-east-1": 0.0104, "us-east-2": 0.0104, "us-west-2": 0.0104},
}

# Amazon EBS pricing, gp3 storage, us-east-1; more in some regions, by up to half.
GP3_PER_GIB_MONTH = 0.08
# Amazon VPC pricing, public IPv4 addresses, since February 2024; the same in every region, used or idle.
PUBLIC_IPV4_PER_HOUR = 0.005
HOURS_PER_MONTH = 730
