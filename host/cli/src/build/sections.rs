//! The custom sections of a component: what is added to it, and what nobody reads.

use anyhow::{Context as _, bail};

/// Carries a plugin's CRDs, as the host reads it.
const CRDS: &str = "reeve:crds";
/// Names the inner parts of a component for debuggers of components: 8 KB of the smallest plugin.
/// The functions' names, which a trap shows, stand elsewhere.
const INNER_NAMES: &[u8] = b"component-name";
/// The length of a component's magic number and version.
const HEADER: usize = 8;

/// The component with this text in the section of CRDs, and without the names of inner parts.
///
/// # Errors
/// The bytes are no component.
pub(super) fn finish(component: &[u8], crds: &str) -> anyhow::Result<Vec<u8>> {
    let mut finished = component.get(..HEADER).context("the linker's file is too short")?.to_vec();
    let mut at = HEADER;
    while at < component.len() {
        let (length, body) = read_leb128(component, at + 1)?;
        let Some(content) = component.get(body..body + length) else {
            bail!("the linker's file ends within a section");
        };
        if component[at] != 0 || section_name(content)? != INNER_NAMES {
            finished.extend_from_slice(&component[at..body + length]);
        }
        at = body + length;
    }
    if !crds.is_empty() {
        let mut content = Vec::new();
        write_leb128(&mut content, CRDS.len());
        content.extend_from_slice(CRDS.as_bytes());
        content.extend_from_slice(crds.as_bytes());
        finished.push(0);
        write_leb128(&mut finished, content.len());
        finished.extend(content);
    }
    Ok(finished)
}

/// The name with which a custom section begins.
fn section_name(content: &[u8]) -> anyhow::Result<&[u8]> {
    let (length, start) = read_leb128(content, 0)?;
    content.get(start..start + length).context("a custom section of the linker's file has no name")
}

/// Reads an unsigned LEB128 number, and says where it ends.
fn read_leb128(bytes: &[u8], mut at: usize) -> anyhow::Result<(usize, usize)> {
    let mut number = 0_usize;
    // Lengths have 32 bits: five bytes of seven.
    for shift in (0..35).step_by(7) {
        let byte = *bytes.get(at).context("the linker's file ends within a number")?;
        at += 1;
        number |= usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok((number, at));
        }
    }
    bail!("the linker's file has a number that is too long")
}

fn write_leb128(bytes: &mut Vec<u8>, mut number: usize) {
    loop {
        // The low seven bits always fit.
        let low = u8::try_from(number & 0x7f).unwrap_or(0);
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return;
        }
        bytes.push(low | 0x80);
    }
}
