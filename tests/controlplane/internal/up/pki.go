package up

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// validity is short: no control plane of a test lives for longer.
const validity = 30 * 24 * time.Hour

// makePKI writes the certificate authority, the certificate that every server
// here uses, and the key that signs the tokens of ServiceAccounts. It returns the
// authority's certificate.
func makePKI(l layout) ([]byte, error) {
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("failed to make a key: %w", err)
	}
	authority := certificate("controlplane-ca", 1)
	authority.IsCA = true
	authority.BasicConstraintsValid = true
	authority.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	authorityDER, err := x509.CreateCertificate(rand.Reader, authority, authority, authorityKey.Public(), authorityKey)
	if err != nil {
		return nil, fmt.Errorf("failed to make the certificate authority: %w", err)
	}

	serverKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("failed to make a key: %w", err)
	}
	server := certificate("controlplane", 2)
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	server.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP("::1"), net.ParseIP(serviceIP)}
	server.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	serverDER, err := x509.CreateCertificate(rand.Reader, server, authority, serverKey.Public(), authorityKey)
	if err != nil {
		return nil, fmt.Errorf("failed to make the server's certificate: %w", err)
	}

	signingKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("failed to make a key: %w", err)
	}

	authorityPEM := encode("CERTIFICATE", authorityDER)
	files := map[string][]byte{"ca.crt": authorityPEM, "server.crt": encode("CERTIFICATE", serverDER)}
	for name, key := range map[string]*ecdsa.PrivateKey{"ca.key": authorityKey, "server.key": serverKey, "sa.key": signingKey} {
		der, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			return nil, fmt.Errorf("failed to encode a key: %w", err)
		}
		files[name] = encode("EC PRIVATE KEY", der)
	}
	for name, content := range files {
		if err := write(l.pki(name), content); err != nil {
			return nil, err
		}
	}
	return authorityPEM, nil
}

func certificate(name string, serial int64) *x509.Certificate {
	// An hour back: a test may run under a clock that was just set.
	start := time.Now().Add(-time.Hour)
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    start,
		NotAfter:     start.Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func randomToken() string {
	token := make([]byte, 16)
	_, _ = rand.Read(token) // never fails: it ends the program instead
	return hex.EncodeToString(token)
}
