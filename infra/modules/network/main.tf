locals {
  create = var.mode != "existing"
  public = contains(["public_egress", "nat"], var.mode)

  zones = !local.create ? [] : var.availability_zones != null ? var.availability_zones : slice(data.aws_availability_zones.this[0].names, 0, var.az_count)
  # Sixteen equal ranges: private subnets take them from the start, public ones from the middle.
  private_subnets = { for index, zone in local.zones : zone => cidrsubnet(var.cidr, 4, index) }
  public_subnets  = local.public ? { for index, zone in local.zones : zone => cidrsubnet(var.cidr, 4, index + 8) } : {}

  nat_zones = var.mode != "nat" ? [] : var.nat_per_az ? local.zones : slice(local.zones, 0, 1)

  vpc_id             = local.create ? aws_vpc.this[0].id : var.existing.vpc_id
  private_subnet_ids = local.create ? [for zone in sort(keys(local.private_subnets)) : aws_subnet.private[zone].id] : var.existing.private_subnet_ids
  # Where a machine can reach the services that it calls.
  has_private_egress = contains(["nat", "endpoints"], var.mode) || (var.mode == "existing" && length(local.private_subnet_ids) > 0)
  public_subnet_ids  = local.create ? [for zone in sort(keys(local.public_subnets)) : aws_subnet.public[zone].id] : var.existing.public_subnet_ids

  tags = merge(var.tags, { Name = var.name, "nightshift:deployment" = var.name })
}

data "aws_availability_zones" "this" {
  #checkov:skip=CKV_AWS_394:Only the first az_count zones are used; availability_zones pins them by name.
  count = local.create && var.availability_zones == null ? 1 : 0

  state = "available"
  # Local zones have neither GPUs nor NAT.
  filter {
    name   = "opt-in-status"
    values = ["opt-in-not-required"]
  }
}

resource "aws_vpc" "this" {
  count = local.create ? 1 : 0

  cidr_block           = var.cidr
  enable_dns_support   = true
  enable_dns_hostnames = true
  tags                 = local.tags
}

# Whatever forgets to name a security group can neither hear nor speak.
resource "aws_default_security_group" "this" {
  count = local.create ? 1 : 0

  vpc_id = aws_vpc.this[0].id
  tags   = merge(local.tags, { Name = "${var.name}-closed" })
}

resource "aws_internet_gateway" "this" {
  count = local.public || (var.mode == "endpoints" && var.internet_gateway) ? 1 : 0

  vpc_id = aws_vpc.this[0].id
  tags   = local.tags
}

resource "aws_subnet" "public" {
  for_each = local.public_subnets

  vpc_id            = aws_vpc.this[0].id
  availability_zone = each.key
  cidr_block        = each.value
  # Behind NAT only the gateways are in public subnets, and they have elastic addresses.
  map_public_ip_on_launch = var.mode == "public_egress"
  tags                    = merge(local.tags, { Name = "${var.name}-public-${each.key}" })
}

resource "aws_route_table" "public" {
  count = local.public ? 1 : 0

  vpc_id = aws_vpc.this[0].id
  tags   = merge(local.tags, { Name = "${var.name}-public" })
}

resource "aws_route" "internet" {
  count = local.public ? 1 : 0

  route_table_id         = aws_route_table.public[0].id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.this[0].id
}

resource "aws_route_table_association" "public" {
  for_each = local.public_subnets

  subnet_id      = aws_subnet.public[each.key].id
  route_table_id = aws_route_table.public[0].id
}

# In mode public_egress no route leads out of them: they are for what CloudFront reaches as a VPC origin.
resource "aws_subnet" "private" {
  for_each = local.private_subnets

  vpc_id            = aws_vpc.this[0].id
  availability_zone = each.key
  cidr_block        = each.value
  tags              = merge(local.tags, { Name = "${var.name}-private-${each.key}" })
}

resource "aws_route_table" "private" {
  for_each = local.private_subnets

  vpc_id = aws_vpc.this[0].id
  tags   = merge(local.tags, { Name = "${var.name}-private-${each.key}" })
}

resource "aws_route_table_association" "private" {
  for_each = local.private_subnets

  subnet_id      = aws_subnet.private[each.key].id
  route_table_id = aws_route_table.private[each.key].id
}

resource "aws_eip" "nat" {
  for_each = toset(local.nat_zones)

  domain = "vpc"
  tags   = merge(local.tags, { Name = "${var.name}-nat-${each.key}" })
}

resource "aws_nat_gateway" "this" {
  for_each = toset(local.nat_zones)

  allocation_id = aws_eip.nat[each.key].id
  subnet_id     = aws_subnet.public[each.key].id
  tags          = merge(local.tags, { Name = "${var.name}-${each.key}" })
  depends_on    = [aws_route.internet]
}

resource "aws_route" "nat" {
  for_each = var.mode == "nat" ? local.private_subnets : {}

  route_table_id         = aws_route_table.private[each.key].id
  destination_cidr_block = "0.0.0.0/0"
  # The zone's own gateway, or the one that all share.
  nat_gateway_id = aws_nat_gateway.this[var.nat_per_az ? each.key : local.nat_zones[0]].id
}
