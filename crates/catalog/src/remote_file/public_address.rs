//! Public addresses, by the registries of special-purpose addresses of IANA (RFC 6890).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns true if an address belongs to the public internet. An IPv6 address that stands for an IPv4 address is judged
/// by it.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => embedded(address).map_or_else(|| is_public_v6(address), is_public_v4),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [first, second, third, _] = address.octets();
    let is_special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        || match (first, second, third) {
            // "This network", and reserved addresses with that of broadcasts.
            (0 | 240..=255, _, _) => true,
            // Addresses between a provider and its customers (RFC 6598).
            (100, 64..=127, _) => true,
            // Protocol assignments, and relays of 6to4.
            (192, 0, 0) | (192, 88, 99) => true,
            // Measurements of devices (RFC 2544).
            (198, 18..=19, _) => true,
            _ => false,
        };
    !is_special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    match address.segments() {
        // Documentation, ORCHID and other assignments of protocols below 2001::/23.
        [0x2001, 0xdb8, ..] | [0x2001, 0..=0x1ff, ..] | [0x3fff, 0..=0xfff, ..] => false,
        // Global unicast (RFC 4291). Everything else is local, for groups or not assigned.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

/// Returns the IPv4 address that an IPv6 address stands for: mapped, translated (NAT64) or of 6to4.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b] = match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, a, b] | [0x64, 0xff9b, 0, 0, 0, 0, a, b] | [0x2002, a, b, ..] => [a, b],
        _ => return None,
    };
    Some(Ipv4Addr::from(u32::from(a) << 16 | u32::from(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_addresses_are_not_public() {
        let special = [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.0.9",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
            "2001::1",
            "2001:db8::1",
            "2001:10::1",
            "3fff::1",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "64:ff9b:1::1",
            "100::1",
            "5f00::1",
        ];
        for address in special {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
        let public = [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.255.255",
            "100.128.0.0",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450::1",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::1",
        ];
        for address in public {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }
}
